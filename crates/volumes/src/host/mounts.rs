//! The kernel's mount table, and bind mounts.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::error::Error;
use crate::remove;

const TABLE: &str = "/proc/self/mountinfo";
/// The mount option of file systems that support SELinux labels.
const LABELS: &[u8] = b"seclabel";

/// The mount option of mounts that pass later ones on.
const SHARED: &[u8] = b"shared:";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// Its id, and that of the mount that it is mounted on.
    id: OsString,
    parent: OsString,
    /// Where it is mounted.
    point: PathBuf,
    /// The source: `major:minor` of the file system, and the root in it.
    what: (OsString, OsString),
    /// What the file system was mounted from: a device, or any text.
    source: OsString,
    /// Whether the file system supports SELinux labels.
    labels: bool,
    /// Whether it passes later mounts on to its copies.
    shared: bool,
}

/// A snapshot of the mount table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    mounts: Vec<Mount>,
}

impl Table {
    pub(crate) fn read() -> Result<Self, Error> {
        let text = fs::read(TABLE).map_err(|error| Error::io("read", Path::new(TABLE), error))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        let mounts = text.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let id = OsStr::from_bytes(fields.next()?).to_owned();
            let parent = OsStr::from_bytes(fields.next()?).to_owned();
            let device = OsStr::from_bytes(fields.next()?).to_owned();
            let root = unescaped(fields.next()?);
            let point = unescaped(fields.next()?).into();
            // Before the dash: options of the mount, and optional fields.
            let before = fields.by_ref().take_while(|field| *field != b"-");
            // All of them are passed over.
            let shared = before.filter(|field| field.starts_with(SHARED)).count() > 0;
            // Behind it: kind, source, and options of the file system.
            let source = unescaped(fields.nth(1).unwrap_or_default());
            let options = fields.next().unwrap_or_default();
            let labels = options.split(|byte| *byte == b',').any(|option| option == LABELS);
            Some(Mount { id, parent, point, what: (device, root), source, labels, shared })
        });
        Self { mounts: mounts.collect() }
    }

    /// Whether something is mounted at exactly that path.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.at(path).is_some()
    }

    /// The topmost mount at exactly that path.
    fn at(&self, path: &Path) -> Option<&Mount> {
        let path = real(path);
        self.mounts.iter().rfind(|mount| mount.point == path)
    }

    /// Whether the file system at that path supports SELinux labels.
    pub(crate) fn has_labels(&self, path: &Path) -> bool {
        self.at(path).is_some_and(|mount| mount.labels)
    }

    /// What the file system at that path was mounted from.
    pub(crate) fn source(&self, path: &Path) -> Option<OsString> {
        self.at(path).map(|mount| mount.source.clone())
    }

    /// Other mount points with the same source as the mount at that path.
    pub(crate) fn twins(&self, path: &Path) -> Vec<&Path> {
        let Some(Mount { what, point, .. }) = self.at(path) else { return Vec::new() };
        let same = self.mounts.iter().filter(|mount| mount.what == *what && mount.point != *point);
        same.map(|mount| mount.point.as_path()).collect()
    }

    /// Mount points with that file name.
    pub(crate) fn named<'t>(&'t self, name: &'t str) -> impl Iterator<Item = &'t Path> {
        let points = self.mounts.iter().map(|mount| mount.point.as_path());
        points.filter(move |point| point.file_name().is_some_and(|own| own == name))
    }

    /// Bind mounts of a directory.
    pub(crate) fn binds(&self, directory: &Path) -> Vec<&Path> {
        let directory = real(directory);
        let Some(what) = self.what(&directory) else { return Vec::new() };
        let same = self.mounts.iter().filter(|mount| mount.what == what);
        same.map(|mount| mount.point.as_path()).filter(|point| *point != directory).collect()
    }

    /// The source that a bind mount of that directory would have.
    fn what(&self, directory: &Path) -> Option<(OsString, OsString)> {
        let holder = self.holder(directory)?;
        let inside = directory.strip_prefix(&holder.point).ok()?;
        let (device, root) = &holder.what;
        let root = match inside.as_os_str().is_empty() {
            true => root.clone(),
            false => Path::new(root).join(inside).into_os_string(),
        };
        Some((device.clone(), root))
    }

    /// The mount that holds a directory.
    fn holder(&self, directory: &Path) -> Option<&Mount> {
        let holds = |mount: &&Mount| directory.starts_with(&mount.point);
        let holders = self.mounts.iter().enumerate().filter(|(_, mount)| holds(mount));
        let deepest =
            holders.max_by_key(|(index, mount)| (mount.point.components().count(), *index));
        deepest.map(|(_, holder)| holder)
    }

    /// Whether the mount that holds a directory passes later mounts on to its copies.
    pub(crate) fn is_shared(&self, directory: &Path) -> bool {
        self.holder(directory).is_some_and(|holder| holder.shared)
    }

    /// Mount points at and below a directory, in the order of mounting.
    pub(crate) fn below(&self, directory: &Path) -> Vec<PathBuf> {
        let below = self.mounts.iter().filter(|mount| mount.point.starts_with(directory));
        below.map(|mount| mount.point.clone()).collect()
    }

    /// Mount points at and below a directory that no path leads to, as another mount covers what they
    /// are mounted on.
    pub(crate) fn hidden(&self, directory: &Path) -> Vec<PathBuf> {
        let below = self.mounts.iter().filter(|mount| mount.point.starts_with(directory));
        let hidden = below.filter(|mount| !self.leads_to(mount));
        hidden.map(|mount| mount.point.clone()).collect()
    }

    /// Whether a walk along the path of a mount, as the kernel's, comes by it.
    fn leads_to(&self, wanted: &Mount) -> bool {
        let on = |parent: &Mount, point: &Path| {
            let mut children = self.mounts.iter().filter(|mount| mount.point == point);
            children.find(|mount| mount.parent == parent.id && mount.id != parent.id)
        };
        let is_first = |mount: &&Mount| {
            mount.point == Path::new("/") && !self.mounts.iter().any(|m| m.id == mount.parent)
        };
        let root = self.mounts.iter().find(|mount| mount.point == Path::new("/"));
        let Some(mut current) = self.mounts.iter().find(is_first).or(root) else { return true };
        let mut path = PathBuf::new();
        // Each step goes to a mount that was not passed: no more steps than mounts.
        let mut steps = self.mounts.len();
        for component in wanted.point.components() {
            path.push(component);
            while current.id != wanted.id
                && let Some(next) = on(current, &path)
            {
                current = next;
                steps = steps.saturating_sub(1);
                if steps == 0 {
                    return true;
                }
            }
        }
        current.id == wanted.id
    }
}

/// A path as in the mount table, with links resolved, as the node's root directory may be behind
/// one. The last component is not accessed, as it may be an unresponsive mount.
pub(crate) fn real(path: &Path) -> PathBuf {
    match path.parent().zip(path.file_name()) {
        Some((parent, name)) => real_dir(parent).join(name),
        None => path.to_owned(),
    }
}

/// The same of a directory of the node's own.
pub(crate) fn real_dir(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Decodes octal escapes.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        match code.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Mount flags to set and to clear on a bind mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BindOptions {
    set: MsFlags,
    clear: MsFlags,
}

impl BindOptions {
    /// No changes.
    pub(crate) fn none() -> Self {
        Self { set: MsFlags::empty(), clear: MsFlags::empty() }
    }

    /// From the mount options of a volume. Options that do not apply to bind mounts are an error.
    pub(crate) fn of(options: &[String], read_only: bool) -> Result<Self, Error> {
        let read_only = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        let mut flags = Self { set: read_only, clear: MsFlags::empty() };
        for option in options.iter().flat_map(|option| option.split(',')) {
            let (set, clear) = match option {
                "" | "bind" | "rw" | "defaults" => continue,
                "ro" => (MsFlags::MS_RDONLY, MsFlags::empty()),
                "nosuid" => (MsFlags::MS_NOSUID, MsFlags::empty()),
                "suid" => (MsFlags::empty(), MsFlags::MS_NOSUID),
                "nodev" => (MsFlags::MS_NODEV, MsFlags::empty()),
                "dev" => (MsFlags::empty(), MsFlags::MS_NODEV),
                "noexec" => (MsFlags::MS_NOEXEC, MsFlags::empty()),
                "exec" => (MsFlags::empty(), MsFlags::MS_NOEXEC),
                "noatime" => (MsFlags::MS_NOATIME, MsFlags::MS_RELATIME),
                "nodiratime" => (MsFlags::MS_NODIRATIME, MsFlags::empty()),
                "relatime" => (MsFlags::MS_RELATIME, MsFlags::MS_NOATIME),
                other => return Err(Error::MountOption(other.to_owned())),
            };
            flags.set |= set;
            flags.clear |= clear;
        }
        Ok(flags)
    }
}

/// Mounts a file or directory at another path, which must be there.
pub(crate) fn bind(from: &Path, to: &Path, options: BindOptions) -> Result<(), Error> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|errno| Error::io("bind a volume to", to, errno))?;
    complete(to, options)
}

/// Remounts a bind mount with its options, if necessary.
pub(crate) fn complete(to: &Path, options: BindOptions) -> Result<(), Error> {
    let none = None::<&str>;
    let fail = |action| move |errno: Errno| Error::io(action, to, errno);
    let BindOptions { set, clear } = options;
    if set.is_empty() && clear.is_empty() {
        return Ok(());
    }
    // A remount replaces all flags.
    let kept = statvfs(to).map_err(|error| Error::io("look at", to, error))?.f_flag;
    let kept = [
        (StatVfsMountFlags::RDONLY, MsFlags::MS_RDONLY),
        (StatVfsMountFlags::NOSUID, MsFlags::MS_NOSUID),
        (StatVfsMountFlags::NODEV, MsFlags::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, MsFlags::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, MsFlags::MS_NOATIME),
        (StatVfsMountFlags::NODIRATIME, MsFlags::MS_NODIRATIME),
        (StatVfsMountFlags::RELATIME, MsFlags::MS_RELATIME),
    ]
    .into_iter()
    .filter(|(own, _)| kept.contains(*own))
    .fold(MsFlags::empty(), |flags, (_, flag)| flags | flag);
    let wanted = kept.difference(clear) | set;
    if wanted == kept {
        return Ok(());
    }
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | wanted;
    let remounted = mount(none, to, none, flags, none).map_err(fail("set the options of"));
    // A read-only volume must not stay mounted writable.
    remounted.or_else(|error| remove::unmount(to).and(Err(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> Table {
        Table::parse(lines.join("\n").as_bytes())
    }

    #[test]
    fn mount_table_finds_binds_by_device_and_root() {
        let table = table(&[
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
            "23 22 8:1 /srv/data /pods/u1/vol rw - ext4 /dev/sda1 rw",
            r"24 22 8:1 /srv/data /pods/u2/a\040blank rw - ext4 /dev/sda1 rw",
            "25 22 8:1 /srv/data/sub /pods/u3/vol rw - ext4 /dev/sda1 rw",
            "26 22 7:0 / /global rw - ext4 /dev/loop0 rw",
            "27 22 7:0 / /pods/u4/vol rw - ext4 /dev/loop0 rw",
            "broken",
        ]);
        let binds = |path: &str| table.binds(Path::new(path));
        assert_eq!(binds("/srv/data"), [Path::new("/pods/u1/vol"), Path::new("/pods/u2/a blank")]);
        assert_eq!(binds("/srv/data/sub"), [Path::new("/pods/u3/vol")]);
        assert_eq!(binds("/srv/other"), Vec::<&Path>::new());
        assert_eq!(binds("/global"), [Path::new("/pods/u4/vol")]);
        assert_eq!(table.twins(Path::new("/pods/u4/vol")), [Path::new("/global")]);
        assert!(table.has(Path::new("/pods/u2/a blank")));
        assert!(!table.has(Path::new("/pods/u2")));
    }

    #[test]
    fn mount_table_finds_shared_mounts() {
        let table = table(&[
            "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
            "23 22 8:2 / /var rw,relatime shared:7 master:2 - ext4 /dev/sda2 rw",
            "24 22 8:3 / /srv rw,relatime master:3 - ext4 shared:9 rw",
            "25 23 8:3 / /var/lib/node rw,relatime - ext4 /dev/sda3 rw",
        ]);
        for (path, expected) in [
            ("/root", false),
            ("/var/lib/kubelet", true),
            ("/srv/kubelet", false),
            ("/var/lib/node", false),
            ("/var/lib/node/pods", false),
        ] {
            assert_eq!(table.is_shared(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn mount_table_finds_mounts_that_no_path_leads_to() {
        let lines = [
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "30 22 0:50 / /k/pods/u1/vol rw - tmpfs tmpfs rw",
            "31 22 0:51 / /k/pods/u2/vol rw - tmpfs tmpfs rw",
        ];
        assert_eq!(table(&lines).hidden(Path::new("/k")), Vec::<PathBuf>::new());
        // Another daemon has bound the directory over itself, and mounted more on that.
        let bound: Vec<&str> = lines
            .into_iter()
            .chain([
                "40 22 8:1 /k /k rw shared:9 - ext4 /dev/sda1 rw",
                "41 40 0:52 / /k/pods/u3/vol rw shared:10 - tmpfs tmpfs rw",
                "42 41 0:53 / /k/pods/u3/vol rw shared:11 - tmpfs tmpfs rw",
            ])
            .collect();
        let hidden = |of: &str| table(&bound).hidden(Path::new(of));
        assert_eq!(hidden("/k"), ["/k/pods/u1/vol", "/k/pods/u2/vol"].map(PathBuf::from));
        assert_eq!(hidden("/k/pods/u2"), [PathBuf::from("/k/pods/u2/vol")]);
        assert_eq!(hidden("/k/pods/u3"), Vec::<PathBuf>::new(), "stacked: both can be unmounted");
    }

    #[test]
    fn mount_table_detects_seclabel() {
        let table = table(&[
            "26 22 7:0 / /own rw,relatime shared:3 master:1 - ext4 /dev/loop0 rw,seclabel,discard",
            "27 22 7:1 / /one rw - ext4 /dev/loop1 rw,context=system_u:object_r:container_file_t:s0",
            "28 22 7:2 / /none rw - ext4 /dev/seclabel rw",
            "29 22 7:3 / /cut rw -",
        ]);
        for (path, expected) in [("/own", true), ("/one", false), ("/none", false), ("/cut", false)]
        {
            assert_eq!(table.has_labels(Path::new(path)), expected, "{path}");
        }
        for (path, expected) in [("/one", "/dev/loop1"), ("/cut", ""), ("/none", "/dev/seclabel")] {
            assert_eq!(table.source(Path::new(path)), Some(expected.into()), "{path}");
        }
    }

    #[test]
    fn bind_options_become_flags_or_are_refused() {
        let of = |options: &[&str], read_only| {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            BindOptions::of(&options, read_only).map_err(|error| error.to_string())
        };
        assert_eq!(of(&[], false), Ok(BindOptions::none()));
        let set = MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME;
        let clear = MsFlags::MS_RELATIME;
        assert_eq!(of(&["noexec,noatime", "rw"], true), Ok(BindOptions { set, clear }));
        let refused = Err("mount option \"hard\" cannot be applied to a bind mount".to_owned());
        assert_eq!(of(&["hard"], false), refused);
    }

    proptest::proptest! {
        #[test]
        fn mount_table_parses_any_text(text: Vec<u8>) {
            let table = Table::parse(&text);
            table.binds(Path::new("/x"));
            table.hidden(Path::new("/"));
            table.is_shared(Path::new("/x"));
        }
    }
}
