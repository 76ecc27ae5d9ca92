//! How many connections a server holds. Those that have shown no authorization yet are few, and the
//! oldest of them makes way for a new one: a crowd that only waits keeps nobody out.
