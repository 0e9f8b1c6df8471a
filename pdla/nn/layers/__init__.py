"""The layers: one idea a file, over Layer and a scheme's tables."""
