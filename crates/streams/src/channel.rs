//! The channels of a remote command in a WebSocket: the first byte of each message.

/// Input.
pub const STDIN: u8 = 0;
/// Output.
pub const STDOUT: u8 = 1;
/// Error output.
pub const STDERR: u8 = 2;
/// How the command has ended.
pub const ERROR: u8 = 3;
/// Sizes of the terminal.
pub const RESIZE: u8 = 4;
/// The next byte is a channel on which the sender sends no more; from `v5.channel.k8s.io` on.
pub const CLOSE: u8 = 255;
