//! A panic in the work on one pod or one request ends that work. Anywhere else it ends the daemon, so
//! that no part of it is missing unnoticed.
