"""A cell's number: measured in runs (`measured`), counted or derived (`counted`), against the paper's (`agreement`)."""
