"""Files that users name: open them safely, detect their types by content, find them in folders."""
