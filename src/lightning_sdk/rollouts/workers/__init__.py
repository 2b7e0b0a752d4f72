"""Kinds of workers, one file each, behind one interface: `base.Workers`."""
