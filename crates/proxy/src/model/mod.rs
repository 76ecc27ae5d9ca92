//! Services and their endpoints as this node sees them.
