"""`python -m kinema4d_ros.cli` is the same as `kinema4d`."""

import sys

from kinema4d_ros.cli import main

sys.exit(main())
