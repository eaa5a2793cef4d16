"""What people decide, for every front door: the command line, a console, code of your own."""
