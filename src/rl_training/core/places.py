"""Names of files and folders that several rooms know."""

CHECKPOINT_FOLDER = "checkpoints"
