"""Assembly needs no numpy: only what learns from episodes does."""

from __future__ import annotations

import subprocess
import sys


def test_the_assembly_imports_no_numpy() -> None:
    program = (
        "import sys; import lightning_sdk.mdp; assert 'numpy' not in sys.modules; "
        "import lightning_sdk.mdp.advantages; assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
