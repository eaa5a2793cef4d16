"""How does the world answer? The tool contract, the registry, outcome tables, and a folder for each provider."""
