"""The workflows of CI servers, rendered from the matrix, with what their jobs run."""
