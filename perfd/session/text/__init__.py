"""The summary as text, and the files it is saved to."""

from perfd.session.text.checklist_text import checklist_in_words
from perfd.session.text.result_files import save_results, summary_json
from perfd.session.text.summary_text import Alert, findings_in_words, fitted, in_words

__all__ = [
    "Alert",
    "checklist_in_words",
    "findings_in_words",
    "fitted",
    "in_words",
    "save_results",
    "summary_json",
]
