"""Tables with one row per step, whatever their columns are called: files, folders, patterns and frames."""
