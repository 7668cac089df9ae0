"""The language server: what editors ask about a program, `polyfuse lsp`.

symbols    every name of a program: what it is, and where it is meant
document   answers about one text: hover, definitions, renaming, completion
server     the protocol, by pygls; nothing else here needs it
"""
