"""What moves through Penstock: a package for each flow, strangers to one another, with the same rooms inside."""
