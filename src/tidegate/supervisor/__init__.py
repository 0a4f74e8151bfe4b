"""`tidegate up`: runs every part on one machine and restarts a part that dies."""
