//! Placeholder while the seams are drawn.
