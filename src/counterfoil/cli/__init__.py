"""The command line: `counterfoil NOUN VERB`. One module for each noun, loaded when that noun is used."""
