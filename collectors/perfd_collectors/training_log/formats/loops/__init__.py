"""What loops of many authors print alike: words of their languages, and headings of epochs."""
