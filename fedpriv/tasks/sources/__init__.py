"""Data sets that are not bundled with a package: where they lie on disk, how they are fetched and read."""
