"""python -m nnclr_hub.cli"""

from nnclr_hub.cli import main

main()
