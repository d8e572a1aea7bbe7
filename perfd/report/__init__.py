"""Reports of traces and jobs: one document, as Markdown and as HTML."""
