"""Reports of traces and jobs: one document, shown on a terminal, as Markdown and as HTML."""
