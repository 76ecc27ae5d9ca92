//! How many bytes of request bodies a server holds, as a whole and for one user.
