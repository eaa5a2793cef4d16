"""`python -m counterfoil.cli` is the same as `counterfoil`, for where the script is not on the path."""

from counterfoil.cli.main import main

if __name__ == "__main__":
    main()
