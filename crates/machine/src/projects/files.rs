//! `/etc/projects` (`ID:PATH`) and `/etc/projid` (`NAME:ID`).

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use longshore_base::files;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NOFOLLOW;
use parking_lot::Mutex;

use super::FIRST;

/// Unused projects that are tried, as many as upstream tries: others may use them without a line in the files.
const MAX_TRIED: usize = 128;
/// Bytes of a file that are read; more is an error.
const MAX_SIZE: u64 = 16 << 20;

/// The two files, and below which folder paths are the node's: lines of those that are gone are removed.
#[derive(Debug)]
pub struct ProjectFiles {
    projects: PathBuf,
    names: PathBuf,
    root: PathBuf,
    /// One at a time in this process; others are locked out by `flock`.
    writing: Mutex<()>,
}

impl ProjectFiles {
    /// Those in that folder, which is `/etc`.
    pub fn new(etc: &Path, root: &Path) -> Self {
        Self {
            projects: etc.join("projects"),
            names: etc.join("projid"),
            root: root.to_owned(),
            writing: Mutex::default(),
        }
    }

    /// Adds a directory as a project that is not used; one that is there already keeps its project.
    pub(super) fn add(
        &self,
        path: &Path,
        is_unused: impl Fn(u32) -> io::Result<bool>,
    ) -> io::Result<u32> {
        self.change(|projects, names| {
            let path = text(path)?;
            if let Some((id, _)) =
                projects.iter().filter_map(|line| project(line)).find(|(_, known)| *known == path)
            {
                return Ok(id);
            }
            let known = projects.iter().filter_map(|line| project(line)).map(|(id, _)| id);
            let named = names.iter().filter_map(|line| named(line));
            let used: HashSet<u32> = known.chain(named).collect();
            let unused = (FIRST..=u32::MAX).filter(|id| !used.contains(id)).take(MAX_TRIED);
            for id in unused {
                if is_unused(id)? {
                    projects.push(format!("{id}:{path}"));
                    names.push(format!("volume{id}:{id}"));
                    return Ok(id);
                }
            }
            Err(io::Error::other(format!("{MAX_TRIED} projects from {FIRST} on are in use")))
        })
    }

    /// Removes the lines of the node's directories that are gone.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn prune(&self) -> io::Result<()> {
        self.change(|_, _| Ok(()))
    }

    /// Changes the lines of both files, without those of directories that are gone. A file whose lines stay as they
    /// are is not written.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<String>, &mut Vec<String>) -> io::Result<T>,
    ) -> io::Result<T> {
        let _alone = self.writing.lock();
        let (projects, names) = (locked(&self.projects)?, locked(&self.names)?);
        let (before, names_before) = (lines(&projects)?, lines(&names)?);
        let (mut after, mut names_after) = (before.clone(), names_before.clone());
        let gone: HashSet<u32> = before.iter().filter_map(|line| self.gone(line)).collect();
        after.retain(|line| self.gone(line).is_none());
        let kept: HashSet<u32> =
            after.iter().filter_map(|line| project(line)).map(|(id, _)| id).collect();
        names_after
            .retain(|line| named(line).is_none_or(|id| !gone.contains(&id) || kept.contains(&id)));
        let changed = change(&mut after, &mut names_after)?;
        for (path, file, before, after) in [
            (&self.names, &names, &names_before, &names_after),
            (&self.projects, &projects, &before, &after),
        ] {
            if before != after {
                replace(path, file, after)?;
            }
        }
        Ok(changed)
    }

    /// The project of a line of a directory of the node's that is gone.
    fn gone(&self, line: &str) -> Option<u32> {
        let (id, path) = project(line)?;
        let path = Path::new(path);
        let is_gone = id >= FIRST
            && path.starts_with(&self.root)
            && path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        is_gone.then_some(id)
    }
}

fn text(path: &Path) -> io::Result<&str> {
    let text = path.to_str().filter(|text| !text.contains('\n'));
    text.ok_or_else(|| io::Error::other(format!("{} cannot be a project", path.display())))
}

fn project(line: &str) -> Option<(u32, &str)> {
    let (id, path) = line.split_once(':')?;
    Some((id.parse().ok()?, path))
}

fn named(line: &str) -> Option<u32> {
    let (name, id) = line.split_once(':')?;
    (!name.starts_with('#')).then(|| id.parse().ok())?
}

/// Opens a file, made if it is not there, alone: whoever replaces it has locked it, too.
fn locked(path: &Path) -> io::Result<Flock<File>> {
    loop {
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o644).custom_flags(O_NOFOLLOW);
        let file = options.open(path).map_err(|error| named_error(path, &error))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a file", path.display())));
        }
        let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        // Another one may have been put in its place before it was locked.
        let (of_file, of_path) = (file.metadata()?, fs::symlink_metadata(path)?);
        if (of_file.dev(), of_file.ino()) == (of_path.dev(), of_path.ino()) {
            return Ok(file);
        }
    }
}

fn lines(file: &File) -> io::Result<Vec<String>> {
    let mut text = String::new();
    if file.take(MAX_SIZE).read_to_string(&mut text)? as u64 == MAX_SIZE {
        return Err(io::Error::other(format!("a file of projects has {MAX_SIZE} bytes")));
    }
    Ok(text.lines().map(str::to_owned).collect())
}

/// Replaces a file, whose permissions stay.
fn replace(path: &Path, file: &File, lines: &[String]) -> io::Result<()> {
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    files::replace_with_mode(path, text.as_bytes(), file.metadata()?.permissions().mode() & 0o7777)
}

fn named_error(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files {
        dir: tempfile::TempDir,
        files: ProjectFiles,
    }

    impl Files {
        fn new(projects: &str, names: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("projects"), projects).unwrap();
            fs::write(dir.path().join("projid"), names).unwrap();
            let files = ProjectFiles::new(dir.path(), &dir.path().join("node"));
            Self { dir, files }
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("node")
        }

        fn texts(&self) -> [String; 2] {
            ["projects", "projid"]
                .map(|name| fs::read_to_string(self.dir.path().join(name)).unwrap())
        }
    }

    #[test]
    fn project_is_the_first_that_is_unused() {
        let it = Files::new("# ours\n1048577:/srv/a\nbad\n", "a:1048577\nb:1048578\n#c:1048579\n");
        let path = it.root().join("v");
        fs::create_dir_all(&path).unwrap();
        let id = it.files.add(&path, |id| Ok(id != 1_048_579)).unwrap();
        assert_eq!(id, 1_048_580);
        let [projects, names] = it.texts();
        let added = format!("1048580:{}\n", path.display());
        assert_eq!(projects, format!("# ours\n1048577:/srv/a\nbad\n{added}"));
        assert_eq!(names, "a:1048577\nb:1048578\n#c:1048579\nvolume1048580:1048580\n");
        assert_eq!(it.files.add(&path, |_| Ok(true)).unwrap(), id, "it keeps its project");
        assert_eq!(it.texts(), [projects, names]);
    }

    #[test]
    fn project_of_a_directory_that_is_gone_is_removed() {
        let it = Files::new("", "");
        let paths = ["v", "w"].map(|name| it.root().join(name));
        for path in &paths {
            fs::create_dir_all(path).unwrap();
            it.files.add(path, |_| Ok(true)).unwrap();
        }
        fs::write(
            it.dir.path().join("projects"),
            it.texts()[0].clone()
                + "1048600:/no/such\n7:"
                + &it.root().join("x").display().to_string()
                + "\n",
        )
        .unwrap();
        fs::remove_dir(&paths[0]).unwrap();
        it.files.prune().unwrap();
        let [projects, names] = it.texts();
        let x = it.root().join("x");
        let kept = format!("1048578:{}\n1048600:/no/such\n7:{}\n", paths[1].display(), x.display());
        assert_eq!((projects, names.as_str()), (kept, "volume1048578:1048578\n"));
    }

    #[test]
    fn project_files_that_are_links_or_hostile_are_refused() {
        let it = Files::new("", "");
        let path = it.root().join("v");
        assert!(it.files.add(&path, |_| Ok(false)).is_err(), "all are in use");
        assert_eq!(it.texts(), ["", ""]);
        assert!(it.files.add(Path::new("/a\n1048577:/b"), |_| Ok(true)).is_err());
        let projects = it.dir.path().join("projects");
        fs::remove_file(&projects).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &projects).unwrap();
        let error = it.files.add(&path, |_| Ok(true)).unwrap_err().to_string();
        assert!(error.contains("projects"), "{error}");
    }
}
