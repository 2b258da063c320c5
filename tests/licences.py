"""The licences of all that is installed beside a Python, against those that we allow.

PYTHON tests/licences.py        of that Python's environment; ends with 1 where one is unknown or not allowed
"""

import re
import sys
from importlib.metadata import Distribution, distributions

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "LLVM-exception", "MIT", "MIT-0",
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
}  # fmt: skip
"""By their names in SPDX. All allow use in a program under Apache-2.0; MPL-2.0 asks for changes to its own files."""

OWN = {"dosimeter": "Apache-2.0 AND CC-BY-SA-3.0"}
"""Ours; the second is that of the digits."""

CALLED = {
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "isc license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "public domain": "CC0-1.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""What older metadata calls a licence, in small letters, and its name in SPDX."""


def stated(package: Distribution) -> str:
    """What a package's metadata says: an expression in SPDX, else its classifiers, else its words."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    named = [each.rpartition("::")[2].strip() for each in about.get_all("Classifier") or () if each[:7] == "License"]
    return " AND ".join(named) or (about.get("License") or "").strip().partition("\n")[0]


def allowed(words: str) -> bool:
    """Whether one of the choices (OR) has only licences that we allow; where there are brackets, all choices must."""
    ways = [words] if "(" in words and words.lower() not in CALLED else re.split(r"\s+OR\s+", words)
    return any(all(_named(each) in ALLOWED for each in re.split(r"\s+(?:AND|OR|WITH)\s+", way)) for way in ways)


def _named(licence: str) -> str:
    """Its name in SPDX."""
    return CALLED.get(licence.lower(), licence.strip("( )"))


def wrong(found: dict[str, str]) -> list[str]:
    """Of {package: licence} those that we do not allow, in words."""
    return [
        f"{name}: {words or 'no licence is stated'}"
        for name, words in sorted(found.items(), key=lambda each: each[0].lower())
        if not (OWN.get(name) == words or allowed(words))
    ]


def main() -> None:
    """Print how many packages there are, and end with 1 where one's licence is not allowed."""
    found = {str(each.metadata["Name"]): stated(each) for each in distributions()}
    refused = wrong(found)
    sys.stdout.write(f"{len(found)} packages, {len(found) - len(refused)} of them by licences that are allowed\n")
    sys.exit("\n".join(refused) or 0)


if __name__ == "__main__":
    main()
