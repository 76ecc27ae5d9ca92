//! Container images made on the spot, since a machine may have no registry at hand: one layer, as
//! an OCI archive that every runtime imports. The same files give the same bytes.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, Digest, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, OciLayoutBuilder, Os, RootFsBuilder, SCHEMA_VERSION,
};
use sha2::{Digest as _, Sha256};

use crate::command::{run, search_path};
use crate::error::{AtPath, Error, Result};

/// The sandbox image.
pub const PAUSE: &str = "longshore.local/pause:1";
/// The image for test and demo containers: busybox with all its applets in `/bin`.
pub const BUSYBOX: &str = "longshore.local/busybox:1";

/// Built by `build.rs`.
const PAUSE_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The name under which containerd stores what it imports.
const NAME_ANNOTATION: &str = "io.containerd.image.name";

enum Entry {
    Directory,
    File(Vec<u8>),
    Symlink(PathBuf),
}

/// An image in the making; [`ImageBuilder::build`] ends it. Paths are given without a leading `/`.
pub struct ImageBuilder {
    reference: String,
    // Sorted: a directory comes before what lies in it, and the archive is the same every time.
    entries: BTreeMap<PathBuf, (u32, Entry)>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    user: Option<String>,
}

impl ImageBuilder {
    /// Starts an image of this full name, tag included.
    pub fn new(reference: &str) -> Self {
        Self {
            reference: reference.into(),
            entries: BTreeMap::new(),
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            user: None,
        }
    }

    /// Adds a directory.
    #[must_use]
    pub fn directory(mut self, path: &str, mode: u32) -> Self {
        self.entries.insert(path.into(), (mode, Entry::Directory));
        self
    }

    /// Adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        self.entries.insert(path.into(), (mode, Entry::File(content.into())));
        self
    }

    /// Adds a symbolic link at `path`.
    #[must_use]
    pub fn symlink(mut self, path: &str, target: &str) -> Self {
        self.entries.insert(path.into(), (0o777, Entry::Symlink(target.into())));
        self
    }

    /// What runs in every container of the image.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = words.iter().map(ToString::to_string).collect();
        self
    }

    /// The arguments of the entry point, or what runs if there is none, unless a pod says else.
    #[must_use]
    pub fn cmd(mut self, words: &[&str]) -> Self {
        self.cmd = words.iter().map(ToString::to_string).collect();
        self
    }

    /// Who runs in every container of the image unless a pod says else, as `USER` in a Dockerfile.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Packs it.
    ///
    /// # Errors
    /// When an entry does not fit a tar archive (a name that is too long or absolute).
    pub fn build(self) -> Result<Image> {
        let reference = self.reference.clone();
        let fail =
            |e: &dyn Display| Error::Image { reference: reference.clone(), message: e.to_string() };

        let mut layer = tar::Builder::new(Vec::new());
        for (path, (mode, entry)) in &self.entries {
            append(&mut layer, path, *mode, entry).map_err(|e| fail(&e))?;
        }
        let layer = layer.into_inner().map_err(|e| fail(&e))?;

        let mut archive = Archive(tar::Builder::new(Vec::new()));
        let layer = archive.blob(MediaType::ImageLayer, &layer).map_err(|e| fail(&e))?;
        let config = self.config(layer.digest()).map_err(|e| fail(&e))?;
        let config =
            archive.blob(MediaType::ImageConfig, config.as_bytes()).map_err(|e| fail(&e))?;
        archive.docker_manifest(&reference, &config, &layer).map_err(|e| fail(&e))?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(vec![layer])
            .build()
            .and_then(|manifest| manifest.to_string())
            .map_err(|e| fail(&e))?;
        let mut manifest =
            archive.blob(MediaType::ImageManifest, manifest.as_bytes()).map_err(|e| fail(&e))?;
        let name = HashMap::from([(NAME_ANNOTATION.to_owned(), reference.clone())]);
        manifest.set_annotations(Some(name));
        archive.finish(manifest).map_err(|e| fail(&e)).map(|archive| Image { reference, archive })
    }

    fn config(&self, layer: &Digest) -> Result<String, oci_spec::OciSpecError> {
        let mut run = ConfigBuilder::default()
            .env(vec![format!("PATH={}", crate::command::SYSTEM_PATH)])
            .entrypoint(self.entrypoint.clone())
            .cmd(self.cmd.clone())
            .build()?;
        run.set_user(self.user.clone());
        // The layer is not compressed, so its digest and that of its content are one.
        let rootfs =
            RootFsBuilder::default().typ("layers").diff_ids(vec![layer.to_string()]).build()?;
        ImageConfigurationBuilder::default()
            .architecture(Arch::default())
            .os(Os::Linux)
            .config(run)
            .rootfs(rootfs)
            .build()?
            .to_string()
    }
}

/// A finished image: an OCI archive in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    reference: String,
    archive: Vec<u8>,
}

impl Image {
    /// [`PAUSE`]: our own sandbox process, about 1 KiB.
    ///
    /// # Errors
    /// As for [`ImageBuilder::build`].
    pub fn pause() -> Result<Self> {
        ImageBuilder::new(PAUSE).file("pause", 0o755, PAUSE_PROGRAM).entrypoint(&["/pause"]).build()
    }

    /// [`BUSYBOX`], from the machine's static busybox.
    ///
    /// # Errors
    /// When busybox is absent or needs libraries, which the image would lack.
    pub fn busybox() -> Result<Self> {
        Self::busybox_builder(BUSYBOX)?.build()
    }

    /// The content of [`BUSYBOX`] under another name.
    ///
    /// # Errors
    /// As for [`Image::busybox`].
    pub fn busybox_builder(reference: &str) -> Result<ImageBuilder> {
        let program = search_path()
            .split(':')
            .map(|dir| Path::new(dir).join("busybox"))
            .find(|path| path.is_file())
            .ok_or_else(|| {
                Error::Machine("busybox is not installed (package busybox-static)".into())
            })?;
        let content = fs::read(&program).at(&program)?;
        if [&b"/ld-linux"[..], b"/ld-musl"]
            .iter()
            .any(|ld| content.windows(ld.len()).any(|w| w == *ld))
        {
            let why = format!("{} is not static (package busybox-static)", program.display());
            return Err(Error::Machine(why));
        }
        let mut list = Command::new(&program);
        list.arg("--list");
        let applets = run(list)?;
        let image = ImageBuilder::new(reference)
            .directory("bin", 0o755)
            .file("bin/busybox", 0o755, content)
            .directory("etc", 0o755)
            .file(
                "etc/passwd",
                0o644,
                "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
            )
            .file("etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n")
            .directory("root", 0o700)
            .directory("tmp", 0o1777)
            .cmd(&["sh"]);
        let applets =
            applets.lines().filter(|applet| *applet != "busybox" && !applet.contains('/'));
        Ok(applets.fold(image, |image, applet| image.symlink(&format!("bin/{applet}"), "busybox")))
    }

    /// The image's full name.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// The OCI archive.
    pub fn archive(&self) -> &[u8] {
        &self.archive
    }

    /// The files of the archive, by name.
    pub(crate) fn files(&self) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
        let mut archive = tar::Archive::new(self.archive());
        let files = archive.entries()?.map(|entry| {
            let mut entry = entry?;
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            Ok((entry.path()?.to_string_lossy().into_owned(), content))
        });
        files.collect()
    }

    /// Writes the archive to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, &self.archive).at(path)
    }
}

/// An OCI image layout inside a tar archive.
struct Archive(tar::Builder<Vec<u8>>);

impl Archive {
    fn blob(
        &mut self,
        kind: MediaType,
        content: &[u8],
    ) -> Result<Descriptor, Box<dyn std::error::Error>> {
        let hash: String =
            Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        self.file(&format!("blobs/sha256/{hash}"), content)?;
        let digest: Digest = format!("sha256:{hash}").parse()?;
        Ok(Descriptor::new(kind, content.len().try_into()?, digest))
    }

    /// What `docker load` reads before Docker 25, which knows no OCI layouts.
    fn docker_manifest(
        &mut self,
        reference: &str,
        config: &Descriptor,
        layer: &Descriptor,
    ) -> std::io::Result<()> {
        let blob = |it: &Descriptor| format!("blobs/sha256/{}", it.digest().digest());
        let manifest = serde_json::json!([
            {"Config": blob(config), "RepoTags": [reference], "Layers": [blob(layer)]},
        ]);
        self.file("manifest.json", manifest.to_string().as_bytes())
    }

    fn finish(mut self, manifest: Descriptor) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests(vec![manifest])
            .build()?;
        let layout = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
        self.file("index.json", index.to_string()?.as_bytes())?;
        self.file("oci-layout", layout.to_string()?.as_bytes())?;
        Ok(self.0.into_inner()?)
    }

    fn file(&mut self, path: &str, content: &[u8]) -> std::io::Result<()> {
        append(&mut self.0, Path::new(path), 0o644, &Entry::File(content.into()))
    }
}

fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    path: &Path,
    mode: u32,
    entry: &Entry,
) -> std::io::Result<()> {
    // A fresh header is all zeros: owner root, time 0.
    let mut header = tar::Header::new_ustar();
    header.set_mode(mode);
    match entry {
        Entry::Directory => {
            header.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut header, path, std::io::empty())
        }
        Entry::File(content) => {
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, path, content.as_slice())
        }
        Entry::Symlink(target) => {
            header.set_entry_type(tar::EntryType::Symlink);
            tar.append_link(&mut header, path, target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_build_is_reproducible() {
        let one = ImageBuilder::new("a/b:1").file("x", 0o644, "1").directory("d", 0o755);
        let two = ImageBuilder::new("a/b:1").directory("d", 0o755).file("x", 0o644, "1");
        assert_eq!(one.build().unwrap(), two.build().unwrap());
    }

    #[test]
    fn image_archive_is_an_oci_layout() {
        let image = Image::pause().unwrap();
        let names: Vec<String> = image.files().unwrap().into_keys().collect();
        assert_eq!(names.iter().filter(|n| n.starts_with("blobs/sha256/")).count(), 3);
        assert_eq!(names[3..], ["index.json", "manifest.json", "oci-layout"]);
        assert!(image.archive().len() < 16 * 1024, "{} bytes", image.archive().len());
    }

    #[test]
    fn image_path_traversal_is_rejected() {
        for path in ["../x", "/../x"] {
            let error = ImageBuilder::new("a/b:1").file(path, 0o644, "").build().unwrap_err();
            assert!(error.to_string().contains("a/b:1"), "{error}");
        }
    }

    #[test]
    fn image_busybox_has_its_applets() {
        let image = Image::busybox().unwrap();
        let text = String::from_utf8_lossy(image.archive());
        for applet in ["bin/sh", "bin/sleep", "bin/wget", "bin/nc", "bin/httpd"] {
            assert!(text.contains(applet), "{applet}");
        }
    }
}
