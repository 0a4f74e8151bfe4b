"""`tidegate up`: everything on one machine, each part a child that is started again if it dies."""
