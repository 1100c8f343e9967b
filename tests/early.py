"""Loaded before plugins: nbval imports jsonschema, which would compile a grammar for more than a second.

It is that of international addresses, which no test needs, and each worker would compile it.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema does without
