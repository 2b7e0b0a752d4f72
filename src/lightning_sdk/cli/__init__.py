"""The command line: one file a command, found by the table in `main.py` and loaded when it is used."""
