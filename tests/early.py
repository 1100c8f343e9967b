"""What pytest loads before its plugins: nbval's import of jsonschema would compile a grammar that nothing here needs.

It is that of international addresses, and takes each worker more than a second.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema then leaves the format unchecked
