//! What the kernel tells of chains without a program in between.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{ChainAttribute, ChainMessage, NfTablesMessage};
use rustix::io::Errno;

use super::Table;
use crate::Family;
use crate::netlink::{Changes, Netfilter};

/// `NFNLGRP_NFTABLES`: every change of tables, chains and rules.
const GROUP: u32 = 7;

/// The names of a table's chains.
pub(super) async fn chains(family: Family, table: Table) -> io::Result<Vec<String>> {
    let mut chains = Vec::new();
    let question = NfTablesMessage::GetChain(ChainMessage { attributes: Vec::new() });
    Netfilter::open()?
        .ask(family, NLM_F_DUMP, question, |answer| {
            let attributes = attributes(answer);
            // The kernel dumps the chains of all tables.
            let is = |it: &ChainAttribute| matches!(it, ChainAttribute::Table(name) if name == table.name());
            if attributes.iter().any(is) {
                chains.extend(attributes.into_iter().find_map(|it| match it {
                    ChainAttribute::Name(name) => Some(name),
                    _ => None,
                }));
            }
        })
        .await?;
    Ok(chains)
}

/// Whether a chain exists.
pub(super) async fn has_chain(family: Family, table: Table, chain: &str) -> io::Result<bool> {
    Ok(uses(&mut Netfilter::open()?, family, table, chain).await?.is_some())
}

/// How often a chain is used, by its own rules and by jumps to it; none if there is no such chain.
pub(super) async fn uses(
    kernel: &mut Netfilter,
    family: Family,
    table: Table,
    chain: &str,
) -> io::Result<Option<u32>> {
    let attributes_of =
        vec![ChainAttribute::Table(table.name().into()), ChainAttribute::Name(chain.into())];
    let question = NfTablesMessage::GetChain(ChainMessage { attributes: attributes_of });
    let mut uses = None;
    let answer = kernel
        .ask(family, NLM_F_ACK, question, |answer| {
            uses = attributes(answer).into_iter().find_map(|it| match it {
                ChainAttribute::Use(uses) => Some(uses),
                _ => None,
            });
        })
        .await;
    match answer {
        Ok(()) => Ok(uses),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Word of every change.
pub(super) fn changes() -> io::Result<Changes> {
    Changes::of(GROUP)
}

fn attributes(answer: NetfilterMessageInner) -> Vec<ChainAttribute> {
    match answer {
        NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain)) => chain.attributes,
        _ => Vec::new(),
    }
}
