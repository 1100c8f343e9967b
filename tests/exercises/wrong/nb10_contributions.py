"""More plausible wrong answers to the exercise of notebook 10 about contributions."""

WRONG = [
    (
        "signed_contributions",
        "the sign is lost",
        """
def signed_contributions(gradients):
    lengths = np.sqrt((gradients**2).sum(axis=1))
    return lengths / np.linalg.norm(gradients.sum(axis=0))
""",
    ),
    (
        "signed_contributions",
        "divided by the length of S only once",
        """
def signed_contributions(gradients):
    total = gradients.sum(axis=0)
    return gradients.dot(total) / np.linalg.norm(total)
""",
    ),
    (
        "signed_contributions",
        "this is the cosine",
        """
def signed_contributions(gradients):
    total = gradients.sum(axis=0)
    units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    return units @ (total / np.linalg.norm(total))
""",
    ),
    (
        "signed_contributions",
        "S is their sum",
        """
def signed_contributions(gradients):
    mean = gradients.mean(axis=0)
    return gradients @ mean / (mean @ mean)
""",
    ),
    (
        "signed_contributions",
        "one number for each entry",
        """
def signed_contributions(gradients):
    return gradients / gradients.sum(axis=0)
""",
    ),
    (
        "signed_contributions",
        "an entry where S is small counts",
        """
def signed_contributions(gradients):
    return np.mean(gradients / gradients.sum(axis=0), axis=1)
""",
    ),
    (
        "signed_contributions",
        "the sign is that of the entries' sum",
        """
def signed_contributions(gradients):
    lengths = np.linalg.norm(gradients, axis=1)
    return np.sign(gradients.mean(axis=1)) * lengths / np.linalg.norm(gradients.sum(axis=0))
""",
    ),
]
