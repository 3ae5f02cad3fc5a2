"""The command line: ``local up`` and the commands that read and change what it keeps, worded as kubectl words them."""
