//! A virtual machine with systemd and cgroup v2 that a test drives: boots, runs commands as root, has its power cut.
//!
//! The guest is the Debian that `scripts/vm/image.sh` makes, emulated by qemu. Two network interfaces reach nothing
//! but this machine: one forwards a port of 127.0.0.1 to the guest's apiserver, the other joins two guests.
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::command;
use crate::daemon::{self, Daemon};
use crate::error::{AtPath, Error, Result};

/// Emulated, Debian boots in a minute; on a machine that is busy it takes some.
const BOOT: Duration = Duration::from_secs(600);
/// The port of the guest's apiserver.
const APISERVER: u16 = 6443;
/// Prints which boot this is.
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// The network that joins guests: this, and a guest's number.
const NETWORK: &str = "198.18.7";

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct GuestOptions<'a> {
    /// The folder that `scripts/vm/image.sh` has filled.
    pub image: &'a Path,
    /// The name of the machine.
    pub name: &'a str,
    /// 1 or 2: the last part of its address.
    pub number: u8,
    /// A folder whose content the guest has as `/payload`; its `run.sh` is `scripts/vm/agent.sh`.
    pub payload: &'a Path,
    /// Where disks, sockets and the console are; those of two guests that are joined are in one.
    pub folder: &'a Path,
    /// Memory in MiB.
    pub memory: u32,
}

/// A virtual machine. Its power is cut when it is dropped.
#[derive(Debug)]
pub struct Guest {
    name: String,
    number: u8,
    folder: PathBuf,
    arguments: Vec<String>,
    apiserver: u16,
    running: Option<Running>,
}

/// What there is while a guest runs.
#[derive(Debug)]
struct Running {
    qemu: Daemon,
    replies: Lines<BufReader<OwnedReadHalf>>,
    requests: OwnedWriteHalf,
    sent: u64,
}

/// The result of a command in the guest.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// Its exit code.
    pub code: i32,
    /// Its stdout and stderr.
    pub output: String,
}

impl Guest {
    /// Makes a guest's disks and boots it. Its interfaces have their addresses when this returns.
    ///
    /// # Errors
    /// When a file cannot be made, qemu cannot be started, or the guest does not answer.
    pub async fn boot(options: &GuestOptions<'_>) -> Result<Self> {
        let folder = options.folder.to_owned();
        let path = |kind: &str| folder.join(format!("{}.{kind}", options.name));
        let disk = path("disk");
        // Sparse, so that only what is written takes room.
        let mut copy = Command::new("cp");
        copy.arg("--sparse=always").arg(options.image.join("root.img")).arg(&disk);
        command::run(copy)?;
        let payload = path("payload");
        let size = folder_size(options.payload)? / (1 << 20);
        let mut format = Command::new("mke2fs");
        format
            .args(["-q", "-t", "ext4", "-d"])
            .arg(options.payload)
            .arg(&payload)
            .arg(format!("{}M", size + size / 4 + 16));
        command::run(format)?;
        let apiserver = free_port()?;
        let (here, there) = (options.number, 3 - options.number.clamp(1, 2));
        let lan = |number: u8| folder.join(format!("lan{number}")).display().to_string();
        let shown = |path: &Path| path.display().to_string();
        let arguments = [
            // No KVM: it cannot boot a stock kernel everywhere. Without -cx16 the guest's kernel panics.
            "-accel tcg,thread=multi -cpu max,-cx16".to_owned(),
            format!("-smp 2 -m {}", options.memory),
            "-display none -monitor none".to_owned(),
            format!("-chardev file,id=console,append=on,path={}", shown(&path("console"))),
            "-serial chardev:console".to_owned(),
            format!("-kernel {}", shown(&options.image.join("vmlinuz"))),
            format!("-initrd {}", shown(&options.image.join("initrd"))),
            // What the guest has synced is in this machine's cache, which outlives qemu.
            format!("-drive file={},format=raw,if=virtio,cache=unsafe", shown(&disk)),
            format!("-drive file={},format=raw,if=virtio,readonly=on", shown(&payload)),
            "-device virtio-serial".to_owned(),
            format!("-chardev socket,id=agent,server=on,wait=off,path={}", shown(&path("agent"))),
            "-device virtserialport,chardev=agent,name=longshore.agent".to_owned(),
            format!("-chardev file,id=journal,append=on,path={}", shown(&path("journal"))),
            "-device virtconsole,chardev=journal".to_owned(),
            format!(
                "-netdev user,id=apiserver,restrict=on,hostfwd=tcp:127.0.0.1:{apiserver}-:{APISERVER}"
            ),
            format!("-device virtio-net-pci,netdev=apiserver,mac=52:54:00:12:00:0{here}"),
            format!(
                "-netdev dgram,id=lan,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                lan(here),
                lan(there)
            ),
            format!("-device virtio-net-pci,netdev=lan,mac=52:54:00:12:01:0{here}"),
        ];
        let mut arguments: Vec<String> =
            arguments.iter().flat_map(|group| group.split(' ')).map(str::to_owned).collect();
        arguments.push("-append".to_owned());
        arguments.push(
            "root=/dev/vda rw console=ttyS0 TERM=dumb quiet systemd.show_status=false loglevel=3 panic=-1".to_owned(),
        );
        let mut guest = Self {
            name: options.name.to_owned(),
            number: options.number,
            folder: options.folder.to_owned(),
            arguments,
            apiserver,
            running: None,
        };
        guest.power_on().await?;
        guest.set_up().await?;
        Ok(guest)
    }

    /// The address by which other guests reach it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{NETWORK}.{}", self.number)
    }

    /// The port of 127.0.0.1 behind which the guest's port 6443 is.
    #[must_use]
    pub fn apiserver_port(&self) -> u16 {
        self.apiserver
    }

    /// The file with all that its kernel and its console said. Beside it, `.journal` has its journal.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.folder.join(format!("{}.console", self.name))
    }

    /// Switches it on, and waits until it runs commands.
    ///
    /// # Errors
    /// When qemu cannot be started or the guest does not answer.
    pub async fn power_on(&mut self) -> Result<()> {
        let log = self.folder.join(format!("{}.qemu", self.name));
        let agent = self.folder.join(format!("{}.agent", self.name));
        let _ = fs::remove_file(&agent);
        // A test that is killed leaves no machine behind.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "qemu-system-x86_64"]).args(&self.arguments);
        let mut qemu = Daemon::start("qemu", command, &log)?;
        let connected = crate::wait_until(Duration::from_secs(30), "qemu's socket", async || {
            UnixStream::connect(&agent).await
        })
        .await;
        qemu.check_running()?;
        let stream = connected?;
        let (read, requests) = stream.into_split();
        self.running =
            Some(Running { qemu, replies: BufReader::new(read).lines(), requests, sent: 0 });
        self.until_up(None).await
    }

    /// Waits until commands are run, by another boot than `before`.
    async fn until_up(&mut self, before: Option<&str>) -> Result<()> {
        let deadline = tokio::time::Instant::now() + BOOT;
        let mut last = String::new();
        while tokio::time::Instant::now() < deadline {
            let asked = self.ask(BOOT_ID, Duration::from_secs(5)).await;
            match asked {
                Ok(CommandOutput { code: 0, output }) if before != Some(output.trim()) => {
                    return Ok(());
                }
                Ok(said) => {
                    last = format!(": {said:?}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(error @ Error::Ended { .. }) => return Err(error),
                Err(error) => last = format!(": {error}"),
            }
        }
        Err(Error::Timeout { what: format!("{} to boot", self.name), after: BOOT, last })
    }

    /// Gives the machine its name, its interfaces their addresses and its journal a way out, for this boot and the next.
    async fn set_up(&mut self) -> Result<()> {
        let number = self.number;
        self.run(&format!(
            "hostnamectl set-hostname {name} 2>/dev/null || {{ echo {name} >/etc/hostname; hostname {name}; }}
             echo '127.0.1.1 {name}' >>/etc/hosts
             mkdir -p /etc/systemd/journald.conf.d
             printf '[Journal]\\nForwardToConsole=yes\\nTTYPath=/dev/hvc0\\nMaxLevelConsole=info\\n' \
                 >/etc/systemd/journald.conf.d/console.conf
             systemctl restart systemd-journald
             cd /etc/systemd/network
             printf '[Match]\\nMACAddress=52:54:00:12:00:0{number}\\n[Network]\\nAddress=10.0.2.15/24\\n' >10-apiserver.network
             printf '[Match]\\nMACAddress=52:54:00:12:01:0{number}\\n[Network]\\nAddress={address}/24\\nGateway={NETWORK}.254\\n' >10-lan.network
             [ -e /etc/resolv.conf ] || echo 'nameserver {NETWORK}.254' >/etc/resolv.conf
             systemctl enable --now systemd-networkd
             for _ in $(seq 100); do ip -4 addr | grep -q {address} && ip -4 addr | grep -q 10.0.2.15 && exit 0; sleep 0.2; done
             ip addr; exit 1",
            name = self.name,
            address = self.address(),
        ))
        .await
        .map(drop)
    }

    /// Runs lines of bash as root, in `/payload`; what they print. They must succeed, within ten minutes.
    ///
    /// # Errors
    /// When they fail or take longer.
    pub async fn run(&mut self, script: &str) -> Result<String> {
        let said = self.ask(script, Duration::from_secs(600)).await?;
        match said.code {
            0 => Ok(said.output),
            code => Err(Error::Command {
                command: format!("{}: {script}", self.name),
                message: format!("exit code {code}: {}", said.output),
            }),
        }
    }

    /// Runs lines of bash as root, in `/payload`, and says how they ended.
    ///
    /// # Errors
    /// When the guest is off or does not answer in time: the command may still run then.
    pub async fn ask(&mut self, script: &str, timeout: Duration) -> Result<CommandOutput> {
        let name = self.name.clone();
        let Some(running) = &mut self.running else {
            return Err(Error::Machine(format!("{name} is off")));
        };
        let answered = tokio::time::timeout(timeout, running.ask(script)).await;
        match answered {
            Ok(Ok(said)) => Ok(said),
            Ok(Err(status)) => {
                running.qemu.check_running()?;
                Err(Error::Ended { name, status, tail: console_tail(&self.console()) })
            }
            Err(_) => Err(Error::Timeout {
                what: format!("{name}: {script}"),
                after: timeout,
                last: format!("; the console:\n{}", console_tail(&self.console())),
            }),
        }
    }

    /// Cuts its power: what it has not synced is lost.
    ///
    /// # Errors
    /// When qemu cannot be killed.
    pub fn cut_power(&mut self) -> Result<()> {
        if let Some(mut running) = self.running.take() {
            running.qemu.kill()?;
        }
        Ok(())
    }

    /// Reboots it in order, and waits until it runs commands again.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub async fn reboot(&mut self) -> Result<()> {
        let before = self.run(BOOT_ID).await?;
        self.run("systemctl reboot --no-block").await?;
        self.until_up(Some(before.trim())).await
    }

    /// Waits until a guest that powers off is off.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn until_off(&mut self, timeout: Duration) -> Result<()> {
        let console = self.console();
        let Some(running) = &mut self.running else { return Ok(()) };
        crate::wait_until(timeout, "the guest to be off", async || {
            match running.qemu.check_running() {
                Err(_) => Ok(()),
                Ok(()) => Err(console_tail(&console)),
            }
        })
        .await?;
        self.running = None;
        Ok(())
    }
}

impl Running {
    async fn ask(&mut self, script: &str) -> std::result::Result<CommandOutput, String> {
        self.sent += 1;
        // Unlike any that an earlier boot may still answer.
        let id = self.sent.to_string();
        let line = format!("{id} {}\n", STANDARD.encode(format!("cd /payload\n{script}")));
        self.requests.write_all(line.as_bytes()).await.map_err(|e| e.to_string())?;
        loop {
            let line = self.replies.next_line().await.map_err(|e| e.to_string())?;
            let line = line.ok_or("the guest hung up")?;
            let mut words = line.split(' ');
            if words.next() != Some(&id) {
                continue;
            }
            let code = words.next().and_then(|code| code.parse().ok());
            let output = STANDARD.decode(words.next().unwrap_or_default());
            let (Some(code), Ok(output)) = (code, output) else {
                return Err(format!("an answer that is none: {line}"));
            };
            return Ok(CommandOutput {
                code,
                output: String::from_utf8_lossy(&output).into_owned(),
            });
        }
    }
}

fn console_tail(console: &Path) -> String {
    daemon::tail_of(&String::from_utf8_lossy(&fs::read(console).unwrap_or_default()), 10)
}

/// A port that no one listens on. Someone may take it before qemu does; then qemu says so.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).at("127.0.0.1")?;
    listener.local_addr().map(|address| address.port()).at("127.0.0.1")
}

fn folder_size(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        let kind = entry.metadata().at(entry.path())?;
        size += if kind.is_dir() { folder_size(&entry.path())? } else { kind.len() };
    }
    Ok(size)
}
