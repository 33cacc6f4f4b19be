"""The READMEs, and the commands in them whose answers they show."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README, CLIENT = ((ROOT / folder / "README.md").read_text() for folder in (".", "clients"))
CURLS = re.findall(r"```sh\n(curl.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
