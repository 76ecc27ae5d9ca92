//! Virtual machines with Longshore's packages and images of containers at hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use longshore_testkit::{Guest, GuestOptions, Image, program};

/// Enough for anything that a machine under emulation has to do.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// The files of a test's machines.
pub(crate) struct Fixture {
    folder: PathBuf,
    payload: PathBuf,
    image: PathBuf,
}

impl Fixture {
    /// With Debian packages of the programs that were built.
    pub(crate) fn new(test: &str) -> Self {
        let image = std::env::var_os("LONGSHORE_VM_IMAGE").expect(
            "LONGSHORE_VM_IMAGE names the folder that scripts/vm/image.sh has filled: `make vm-machines` sets it",
        );
        // Kept when the test fails.
        let folder = std::env::temp_dir().join(format!("longshore-vm-{test}"));
        let _ = fs::remove_dir_all(&folder);
        let payload = folder.join("payload");
        fs::create_dir_all(&payload).unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        fs::copy(sources.join("scripts/vm/agent.sh"), payload.join("run.sh")).unwrap();
        fs::copy(sources.join("scripts/vm/node/containerd.toml"), payload.join("containerd.toml"))
            .unwrap();
        Image::pause().unwrap().write(&payload.join("pause.tar")).unwrap();
        Image::busybox().unwrap().write(&payload.join("busybox.tar")).unwrap();
        let programs = program("longshore").expect("longshore is built");
        let packed = Command::new(sources.join("scripts/package.sh"))
            .arg("deb")
            .arg(programs.parent().unwrap())
            .arg(&payload)
            // Time under emulation is worth more than space.
            .env("DEB_COMPRESSION", "-Znone")
            .output()
            .unwrap();
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        Self { folder, payload, image: image.into() }
    }

    /// The folder that guests have as `/payload`.
    pub(crate) fn payload(&self) -> &Path {
        &self.payload
    }

    /// Boots a machine on which containers can run.
    pub(crate) async fn machine(&self, name: &str, number: u8) -> Guest {
        let mut guest = self.bare_machine(name, number).await;
        guest
            .run(
                "install -D -m 644 containerd.toml /etc/containerd/config.toml
                 systemctl enable --now containerd
                 for image in *.tar; do ctr -n k8s.io images import $image >/dev/null || exit; done",
            )
            .await
            .unwrap();
        guest
    }

    /// Boots a machine that has no more than the payload.
    pub(crate) async fn bare_machine(&self, name: &str, number: u8) -> Guest {
        let options = GuestOptions {
            image: &self.image,
            name,
            number,
            payload: &self.payload,
            folder: &self.folder,
            memory: 3072,
        };
        Guest::boot(&options).await.unwrap()
    }
}

impl Drop for Fixture {
    /// Of a test that failed, what machines have said is kept.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
            return;
        }
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let said = ["console", "journal", "qemu"]
                .iter()
                .any(|kind| path.extension().is_some_and(|e| e == *kind));
            if !said {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_dir_all(&path);
            }
        }
        eprintln!("vm: what machines and their journals said is in {}", self.folder.display());
    }
}

/// Says how long a step takes.
pub(crate) struct Step(String, Instant);

impl Step {
    pub(crate) fn new(what: &str) -> Self {
        eprintln!("vm: {what}");
        Self(what.to_owned(), Instant::now())
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        eprintln!("vm: {}: {:.0} s", self.0, self.1.elapsed().as_secs_f64());
    }
}
