//! The live view on a terminal: draws each second and after each key, until it is told to end.

use std::io::{self, Write};
use std::thread::JoinHandle;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::inspector::Inspector;
use crate::panel::{Foot, draw, printable};
use crate::processes::Process;
use crate::shell;
use crate::snapshot::Snapshot;
use crate::state::{Action, Key, State};

const EVERY: Duration = Duration::from_secs(1);
/// How soon the thread that reads keys sees that nobody wants them any more.
const KEYS: Duration = Duration::from_millis(100);

/// Shows the node until `stop`, or until a person leaves. `processes` says which processes there are, and its error
/// ends the view.
///
/// # Errors
/// Standard output is not a terminal, or cannot be written; or what `processes` says.
pub async fn show<E: From<io::Error>>(
    inspector: &mut Inspector,
    mut processes: impl FnMut() -> Result<Vec<Process>, E>,
    foot: impl Fn(&Snapshot) -> Foot,
    stop: &CancellationToken,
) -> Result<(), E> {
    let mut screen = Screen::enter()?;
    let mut keys = Keys::start();
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut state, mut snapshot) = (State::default(), Snapshot::default());
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            key = keys.pressed.recv() => match key {
                // Nobody is at the terminal any more.
                None => return Ok(()),
                // Its size has changed.
                Some(None) => {}
                Some(Some(key)) => match state.press(key, &snapshot) {
                    Action::Quit => return Ok(()),
                    Action::Log { id } => state.show_log(&id, inspector.log(&id).await),
                    Action::Shell { id, title } => {
                        let shown = inspector.shell(&id).await;
                        let ended = match shown {
                            Ok(url) => {
                                keys.stop().await;
                                drop(screen);
                                let ended = in_shell(&url, &title, stop).await;
                                screen = Screen::enter()?;
                                keys = Keys::start();
                                ended
                            }
                            Err(why) => Err(why),
                        };
                        state.message = ended.err().map(|why| format!("{title}: {why}"));
                    }
                    Action::Draw => {}
                },
            },
            _ = tick.tick() => {
                let processes = processes()?;
                let Some(sampled) = stop.run_until_cancelled(inspector.sample(&processes)).await
                else {
                    return Ok(());
                };
                snapshot = sampled.clone();
                if let Some(id) = state.log.as_ref().map(|log| log.id.clone()) {
                    state.show_log(&id, inspector.log(&id).await);
                }
            }
        }
        let foot = foot(&snapshot);
        screen.0.draw(|frame| draw(frame, &snapshot, &state, &foot))?;
    }
}

/// A shell on the first screen, which goes on where it was before the view.
async fn in_shell(url: &str, title: &str, stop: &CancellationToken) -> Result<(), String> {
    // Whether it can be written shows in the session.
    let _ = writeln!(io::stdout(), "{}: exit or Ctrl-D leads back", printable(title));
    shell::run(url, stop).await
}

/// The terminal's second screen, without echo; the first is given back on drop and on a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn enter() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Keys as they are pressed; `None` among them for a new size. Reading blocks, so it has a thread of its own.
struct Keys {
    pressed: mpsc::Receiver<Option<Key>>,
    thread: JoinHandle<()>,
}

impl Keys {
    fn start() -> Self {
        let (sender, pressed) = mpsc::channel(16);
        Self { pressed, thread: std::thread::spawn(move || read(&sender)) }
    }

    /// Reads no more: the terminal is another's.
    async fn stop(self) {
        drop(self.pressed);
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

fn read(sender: &mpsc::Sender<Option<Key>>) {
    while !sender.is_closed() {
        let event = match event::poll(KEYS) {
            Ok(true) => event::read(),
            Ok(false) => continue,
            Err(error) => Err(error),
        };
        let key = match event {
            Ok(Event::Key(key)) => match known(key) {
                None => continue,
                key => key,
            },
            Ok(Event::Resize(..)) => None,
            Ok(_) => continue,
            Err(_) => return,
        };
        if sender.blocking_send(key).is_err() {
            return;
        }
    }
}

fn known(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let key = match event.code {
        KeyCode::Char('c' | 'd') if event.modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Interrupt
        }
        KeyCode::Char(char) => Key::Char(char),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        _ => return None,
    };
    Some(key)
}
