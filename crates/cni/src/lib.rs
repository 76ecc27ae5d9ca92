//! The Container Network Interface.
