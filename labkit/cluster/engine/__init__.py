"""What runs in the engines' and the controller's processes."""
