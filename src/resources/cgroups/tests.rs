//! The room with fakes of systemd, where real ones are not at hand.
