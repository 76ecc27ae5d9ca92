//! Sub-paths, and containers that try to lead them out of their volume.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};

use super::{Done, Root, read};
use crate::dir::Dir;
use crate::error::Error;
use crate::sub_path::{SubPath, bind, validate};
use crate::{layout, remove, sub_path};

/// A race takes no longer.
const LONGEST: Duration = Duration::from_secs(60);

struct Setup {
    root: Root,
    pod: Dir,
}

impl Setup {
    fn new() -> Self {
        let root = Root::new();
        root.write("host/canary", "alive");
        root.write("volume/dir/file", "inside");
        let pod = layout::pod_dir(root.path(), "uid-1").unwrap();
        Self { root, pod }
    }

    fn bind(&self, index: usize, path: &str) -> Result<PathBuf, Error> {
        let volume_path = &self.root.join("volume");
        let sub_path =
            SubPath { volume: "v", mount: "v", volume_path, container: "c", index, path };
        bind(&self.pod, sub_path)
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let pods = Dir::open_trusted(&self.root.join("pods")).unwrap();
        remove::pod(&pods, "uid-1".as_ref()).unwrap();
        assert!(self.root.mounts().is_empty() && !self.root.join("pods/uid-1").exists());
        assert_eq!(read(self.root.join("host/canary")), "alive");
    }
}

#[test]
fn sub_path_follows_links_inside_the_volume_as_root() {
    let setup = Setup::new();
    symlink("dir", setup.root.join("volume/link")).unwrap();
    symlink("../dir/file", setup.root.join("volume/dir/up")).unwrap();
    let expected = setup.root.join("pods/uid-1/volume-subpaths/v/c/0");
    assert_eq!(setup.bind(0, "dir").unwrap(), expected);
    assert_eq!(read(expected.join("file")), "inside");
    assert_eq!(read(setup.bind(1, "link/file").unwrap()), "inside");
    assert_eq!(read(setup.bind(2, "dir/up").unwrap()), "inside");
    assert_eq!(read(setup.bind(3, "").unwrap().join("dir/file")), "inside");
    assert_eq!(setup.root.mounts().len(), 4);

    // Again is the same; another file in its place is another bind.
    assert_eq!(setup.bind(0, "dir").unwrap(), expected);
    assert_eq!(setup.root.mounts().len(), 4);
    fs::rename(setup.root.join("volume/dir"), setup.root.join("volume/old")).unwrap();
    setup.root.write("volume/dir", "now a file");
    assert_eq!(read(setup.bind(0, "dir").unwrap()), "now a file");
    assert_eq!(setup.root.mounts().len(), 4);
}

#[test]
fn sub_path_resolves_absolute_links_into_the_volume_as_root() {
    let setup = Setup::new();
    let at = |path: &str| setup.root.join("volume").join(path);
    symlink(at("dir"), at("current")).unwrap();
    symlink(at("current"), at("again")).unwrap();
    symlink("../current/./file", at("dir/back")).unwrap();
    symlink(at(""), at("whole")).unwrap();
    symlink(at("dir/.."), at("up")).unwrap();
    for path in
        ["current/file", "again/file", "again/back", "whole/whole/again/file", "up/dir/file"]
    {
        assert_eq!(read(setup.bind(0, path).unwrap()), "inside", "{path}");
    }
    setup.bind(0, "again/new/dir").unwrap();
    assert!(at("dir/new/dir").is_dir());
    // One of the volume's name that leads on to the host, and one that leads to itself.
    symlink(at("../host"), at("dir/out")).unwrap();
    symlink(at("round"), at("round")).unwrap();
    for path in ["current/out", "current/out/canary", "round", "whole/round/x"] {
        setup.bind(1, path).unwrap_err();
    }
}

#[test]
fn sub_path_creates_directories_with_the_volumes_mode_as_root() {
    let setup = Setup::new();
    let mode = fs::Permissions::from_mode(0o2777);
    fs::set_permissions(setup.root.join("volume"), mode).unwrap();
    symlink("dir", setup.root.join("volume/link")).unwrap();
    setup.bind(0, "link/a/b").unwrap();
    for path in ["volume/dir/a", "volume/dir/a/b"] {
        let metadata = fs::metadata(setup.root.join(path)).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o2777, "{path}");
    }
}

#[test]
fn sub_path_directory_has_its_mode_from_creation() {
    let root = Root::new();
    let parent = OwnedFd::from(fs::File::open(root.path()).unwrap());
    let mode = Mode::from_bits_truncate(0o1777);
    let made = thread::spawn(move || {
        // This thread's alone, as the daemon's.
        unshare(CloneFlags::CLONE_FS).unwrap();
        umask(Mode::from_bits_truncate(0o077));
        sub_path::make_open(&parent, "made".as_ref(), mode).unwrap();
        fs::create_dir(format!("/proc/self/fd/{}/other", parent.as_raw_fd())).unwrap();
    });
    made.join().unwrap();
    let mode = |name| fs::metadata(root.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("made"), mode("other")), (0o1777, 0o700), "others keep theirs");
}

#[test]
fn sub_path_never_binds_or_creates_outside() {
    let setup = Setup::new();
    let host = setup.root.join("host").display().to_string();
    let cases = [
        ("abs", host.clone(), "abs"),
        ("rel", "../host".to_owned(), "rel"),
        ("file", format!("{host}/canary"), "file"),
        ("below", host.clone(), "below/canary"),
        ("new", host.clone(), "new/made"),
        ("dangling", format!("{host}/absent"), "dangling"),
        ("dangling2", "../host/absent".to_owned(), "dangling2/x"),
        ("root", "/".to_owned(), "root"),
        ("magic", "/proc/self/root".to_owned(), "magic/etc"),
        ("loop", "loop".to_owned(), "loop"),
    ];
    for (link, target, path) in cases {
        symlink(target, setup.root.join("volume").join(link)).unwrap();
        let error = setup.bind(0, path).unwrap_err().to_string();
        assert!(error.contains("subPath"), "{path}: {error}");
        assert!(!error.contains("host"), "the pod learns nothing of the host: {error}");
    }
    setup.bind(0, "dir/file/below-a-file").unwrap_err();
    assert!(setup.root.mounts().is_empty());
    assert_eq!(fs::read_dir(host).unwrap().count(), 1, "nothing was made");
}

#[test]
fn sub_path_validation() {
    for good in ["", "a", "a/b", "./a", "a..b"] {
        validate(good).unwrap();
    }
    for (bad, expected) in [
        ("/a", "error SubPath `/a` must not be an absolute path"),
        ("..", "unable to provision SubPath `..`: must not contain '..'"),
        ("a/../b", "unable to provision SubPath `a/../b`: must not contain '..'"),
        ("a/..", "unable to provision SubPath `a/..`: must not contain '..'"),
        ("a\0b", "invalid subPath \"a\\0b\": must not contain NUL"),
    ] {
        assert_eq!(validate(bad).unwrap_err().to_string(), expected);
    }
}

/// Takes so many turns at least while the directory `x` of a volume and the link `y` in it are
/// exchanged all the time, and more until one says that it has seen all there is to see: on a busy
/// machine it may be long before the exchange gets its turn.
fn while_exchanged(volume: &Path, turns: usize, mut turn: impl FnMut(usize) -> bool) {
    let (x, y) = (volume.join("x"), volume.join("y"));
    let done = Done::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.is_done() {
                renameat2(AT_FDCWD, &x, AT_FDCWD, &y, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let _done = done.when_dropped();
        let began = Instant::now();
        for number in 0.. {
            let has_seen_all = turn(number);
            if has_seen_all && number >= turns {
                break;
            }
            assert!(began.elapsed() < LONGEST, "all was seen after {number} turns: {has_seen_all}");
        }
    });
}

/// CVE-2021-25741: a directory that is exchanged with a link out of the volume all the time.
#[test]
fn sub_path_exchanged_during_bind_stays_inside_as_root() {
    let setup = Setup::new();
    let volume = setup.root.join("volume");
    fs::create_dir(volume.join("x")).unwrap();
    fs::write(volume.join("x/mark"), "inside").unwrap();
    symlink(setup.root.join("host"), volume.join("y")).unwrap();
    let (mut bound, mut refused) = (0, 0);
    while_exchanged(&volume, 2000, |turn| {
        match setup.bind(turn % 4, "x") {
            Ok(path) => {
                assert!(path.join("mark").exists() && !path.join("canary").exists());
                bound += 1;
            }
            Err(_) => refused += 1,
        }
        bound > 0 && refused > 0
    });
}

/// The same on the way to a directory that is still to be made, and for a file.
#[test]
fn sub_path_exchanged_parents_stay_inside_as_root() {
    let setup = Setup::new();
    let volume = setup.root.join("volume");
    fs::create_dir(volume.join("x")).unwrap();
    fs::write(volume.join("x/file"), "inside").unwrap();
    fs::write(setup.root.join("host/file"), "outside").unwrap();
    symlink(setup.root.join("host"), volume.join("y")).unwrap();
    let (mut made, mut bound) = (0, 0);
    while_exchanged(&volume, 500, |turn| {
        made += usize::from(setup.bind(0, &format!("x/new-{turn}/deep")).is_ok());
        if let Ok(path) = setup.bind(1, "x/file") {
            assert_eq!(read(path), "inside");
            bound += 1;
        }
        made > 0 && bound > 0
    });
    assert_eq!(fs::read_dir(setup.root.join("host")).unwrap().count(), 2, "nothing was made");
}

#[test]
fn sub_path_reads_stay_inside_the_volume() {
    let root = Root::new();
    root.write("host/secret", "no");
    root.write("volume/dir/file", "yes");
    symlink("dir/file", root.join("volume/inside")).unwrap();
    symlink("../host/secret", root.join("volume/outside")).unwrap();
    symlink(root.join("host/secret"), root.join("volume/absolute")).unwrap();
    nix::unistd::mkfifo(&root.join("volume/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let read = |path: &str| {
        let content = sub_path::read(&root.join("volume"), path.as_ref(), 3);
        content.ok().map(|content| String::from_utf8(content).unwrap())
    };
    for path in ["dir/file", "inside"] {
        assert_eq!(read(path).as_deref(), Some("yes"), "{path}");
    }
    for path in ["outside", "absolute", "pipe", "dir", "absent", "../host/secret"] {
        assert_eq!(read(path), None, "{path}");
    }
    root.write("volume/dir/file", "much");
    assert_eq!(read("inside"), None, "too long");
}
