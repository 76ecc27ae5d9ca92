//! Types of host paths.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::Root;
use crate::host_path::set_up;

#[test]
fn host_path_types_are_checked_and_created() {
    let root = Root::new();
    root.write("dir/file", "kept");
    symlink(root.join("dir/file"), root.join("link")).unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let at = |name: &str| {
        if name.starts_with('/') { name.to_owned() } else { root.join(name).display().to_string() }
    };
    let cases = [
        ("", "absent", None),
        ("Directory", "dir", None),
        ("Directory", "dir/file", Some("directory")),
        ("Directory", "absent", Some("directory")),
        ("File", "dir/file", None),
        ("File", "link", None),
        ("File", "dir", Some("file")),
        ("Socket", "socket", None),
        ("Socket", "dir/file", Some("socket file")),
        ("Socket", "absent", Some("socket file")),
        ("CharDevice", "/dev/null", None),
        ("CharDevice", "dir", Some("character device")),
        ("BlockDevice", "/dev/null", Some("block device")),
        ("DirectoryOrCreate", "new/deep", None),
        ("DirectoryOrCreate", "dir", None),
        ("DirectoryOrCreate", "dir/file", Some("directory")),
        ("FileOrCreate", "new/file", None),
        ("FileOrCreate", "dir/file", None),
        ("FileOrCreate", "dir", Some("file")),
    ];
    for (type_, name, wrong) in cases {
        let source = HostPathVolumeSource { path: at(name), type_: Some(type_.to_owned()) };
        let result = set_up(&source).map_err(|error| error.to_string());
        let expected = match wrong {
            None => Ok(()),
            Some(what) => Err(format!("hostPath type check failed: {} is not a {what}", at(name))),
        };
        assert_eq!(result, expected, "{type_} {name}");
    }
    assert!(root.join("new/deep").is_dir() && !root.join("absent").exists());
    assert_eq!(super::read(root.join("dir/file")), "kept");
    let mode = fs::metadata(root.join("new/file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);

    for (type_, path, expected) in [
        ("", "/a/../etc", "invalid HostPath `/a/../etc`: must not contain '..'"),
        ("Pipe", "/etc", "Pipe is an invalid volume type"),
    ] {
        let source = HostPathVolumeSource { path: path.to_owned(), type_: Some(type_.to_owned()) };
        assert_eq!(set_up(&source).unwrap_err().to_string(), expected);
    }
}
