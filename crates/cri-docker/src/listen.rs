//! Where CRI is served: at a socket that is made, or at one that systemd has made (`LISTEN_FDS`).

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname, getsockopt};
use nix::sys::socket::{SockType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::{Error, Result};

/// The first descriptor that systemd passes.
const FIRST: RawFd = 3;

/// A socket of CRI.
#[derive(Debug)]
pub enum Listen {
    /// One to be made, and made again when someone removes it.
    Path(PathBuf),
    /// One that somebody else has made.
    Inherited(UnixListener),
}

impl Listen {
    /// The socket that systemd has passed to this process, or else that path. To be called once.
    ///
    /// # Errors
    /// When what was passed is not one listening Unix socket.
    pub fn inherited_or(path: PathBuf) -> Result<Self> {
        let variable = |name| std::env::var_os(name);
        match passed(variable("LISTEN_PID"), variable("LISTEN_FDS"), std::process::id()) {
            0 => Ok(Self::Path(path)),
            1 => take(FIRST).map(Self::Inherited),
            more => Err(Error::Inherited(format!("{more} sockets were passed, and one is served"))),
        }
    }
}

/// How many descriptors are passed to the process.
fn passed(process: Option<OsString>, count: Option<OsString>, own: u32) -> u32 {
    let number = |text: Option<OsString>| text?.to_str()?.parse::<u32>().ok();
    // Programs that this one starts inherit the variables, which do not count for them.
    if number(process) == Some(own) { number(count).unwrap_or(0) } else { 0 }
}

/// Takes a listening Unix socket out of a descriptor, which is closed. What is not one stays as it is.
fn take(descriptor: RawFd) -> Result<UnixListener> {
    let invalid = |why: &str| Error::Inherited(format!("descriptor {descriptor}: {why}"));
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    let duplicate = own
        .and_then(|own| pidfd_getfd(own, descriptor, PidfdGetfdFlags::empty()))
        .map_err(|error| invalid(&error.to_string()))?;
    if !is_listening(&duplicate) {
        return Err(invalid("not a listening Unix stream socket"));
    }
    // Or else programs that are started would keep it.
    nix::unistd::close(descriptor).map_err(|error| invalid(&error.to_string()))?;
    let listener = UnixListener::from(duplicate);
    listener.set_nonblocking(true).map_err(|error| invalid(&error.to_string()))?;
    Ok(listener)
}

fn is_listening(socket: &OwnedFd) -> bool {
    let family = getsockname::<SockaddrStorage>(std::os::fd::AsRawFd::as_raw_fd(socket));
    family.is_ok_and(|address| address.family() == Some(AddressFamily::Unix))
        && getsockopt(&socket.as_fd(), sockopt::SockType) == Ok(SockType::Stream)
        && getsockopt(&socket.as_fd(), sockopt::AcceptConn) == Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_are_passed_to_one_process() {
        let text = |text: &str| Some(OsString::from(text));
        for (process, count, expected) in [
            (None, None, 0),
            (text("7"), text("1"), 1),
            (text("7"), text("2"), 2),
            (text("8"), text("1"), 0),
            (None, text("1"), 0),
            (text("7"), text("-1"), 0),
            (text("7"), text("many"), 0),
        ] {
            assert_eq!(
                passed(process.clone(), count.clone(), 7),
                expected,
                "{process:?} {count:?}"
            );
        }
    }

    #[test]
    fn a_listening_socket_is_taken_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let passed = UnixListener::bind(&path).unwrap().into_raw_fd();
        let taken = take(passed).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        taken.accept().unwrap();
        drop(taken);
        assert!(UnixStream::connect(&path).is_err(), "it is closed");

        let (client, _) = UnixStream::pair().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for other in [OwnedFd::from(client), OwnedFd::from(tcp), OwnedFd::from(file)] {
            let error = take(std::os::fd::AsRawFd::as_raw_fd(&other)).unwrap_err();
            assert!(error.to_string().contains("not a listening"), "{error}");
        }
        assert!(take(RawFd::MAX).is_err());
    }
}
