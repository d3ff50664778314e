"""npm `@stomp/stompjs` over TCP (it thinks in WebSockets: a small wrapper), in versions 1.0, 1.1 and 1.2, on two nodes.

`python -m tests.by_hand.stompjs_client` needs node, npm and ports 7711-7712 free; prints the counts.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from tests.by_hand.foreign import npm_install, run
from tests.system.nodes import Cluster, free_port

SESSION = r"""
const assert = require('assert')
const net = require('net')
const { Client, Versions } = require('@stomp/stompjs')
const ports = process.argv.slice(2).map(Number)
let passed = 0, failed = 0
async function check (name, act) {
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error('late')), 15000).unref())
  try {
    await Promise.race([act(), late])
    passed++
    console.log('ok', name)
  } catch (error) {
    failed++
    console.log('FAILED', name, error)
  }
}
class Tcp {  // what stompjs wants of a WebSocket
  constructor (port) {
    this.url = 'tcp://127.0.0.1:' + port
    this.readyState = 0
    this.socket = net.connect(port, '127.0.0.1')
    this.socket.on('connect', () => { this.readyState = 1; this.onopen && this.onopen() })
    this.socket.on('data', data => this.onmessage && this.onmessage({ data: new Uint8Array(data).buffer }))
    this.socket.on('close', () => { this.readyState = 3; this.onclose && this.onclose({}) })
    this.socket.on('error', error => this.onerror && this.onerror(error))
  }
  send (data) { this.socket.write(typeof data === 'string' ? data : Buffer.from(data)) }
  close () { this.socket.end() }
}
function connect (port, version) {
  return new Promise((resolve, reject) => {
    const client = new Client({
      webSocketFactory: () => new Tcp(port), stompVersions: new Versions([version]), reconnectDelay: 0,
      heartbeatIncoming: 2000, heartbeatOutgoing: 2000, forceBinaryWSFrames: true,
      onConnect: () => resolve(client), onStompError: frame => reject(new Error(frame.headers.message))
    })
    client.activate()
  })
}
const receipt = (client, act) => new Promise(resolve => {
  const id = 'r' + Math.random()
  client.watchForReceipt(id, resolve)
  act(id)
})
async function main () {
  for (const version of ['1.0', '1.1', '1.2']) {
    const one = await connect(ports[0], version), two = await connect(ports[1], version)
    await check(version + ' a job goes from node to node and is acknowledged', async () => {
      const queue = '/queue/js-' + version
      const got = new Promise(resolve => two.subscribe(queue, resolve, { ack: 'client-individual' }))
      const odd = version === '1.2' ? 'a:\n\\' : 'z' // stompjs escapes in 1.2 alone
      const headers = { 'x-y': odd }
      await receipt(one, id => {
        headers.receipt = id
        one.publish({ destination: queue, body: 'a:b\u0000c', headers })
      })
      const message = await got
      assert.equal(message.body, 'a:b\u0000c')
      assert.equal(message.headers['x-y'], odd)
      message.ack()
    })
    await check(version + ' topics with a prefix', async () => {
      const got = []
      const both = new Promise(resolve => two.subscribe('/topic/' + version + '.*', m => {
        got.push(m.body)
        if (got.length === 2) resolve()
      }))
      await receipt(two, id => two.publish({ destination: '/topic/none', body: '', headers: { receipt: id } }))
      one.publish({ destination: '/topic/' + version + '.a', body: '1' })
      one.publish({ destination: '/topic/' + version + '.b', body: '2' })
      await both
      assert.deepEqual(got, ['1', '2'])
    })
    if (version !== '1.0') {
      await check(version + ' nack brings it again', async () => {
        const queue = '/queue/nack-js-' + version
        const again = new Promise(resolve => one.subscribe(queue, m => {
          if (!m.headers.redelivered) return m.nack()
          m.ack()
          resolve(m)
        }, { ack: 'client' }))
        one.publish({ destination: queue, body: 'x' })
        assert.equal((await again).headers.nacks, '1')
      })
    }
    await check(version + ' transactions', async () => {
      const queue = '/queue/tx-js-' + version
      const got = new Promise(resolve => two.subscribe(queue, m => resolve(m.body)))
      const dropped = one.begin(), kept = one.begin()
      one.publish({ destination: queue, body: 'no', headers: { transaction: dropped.id } })
      one.publish({ destination: queue, body: 'yes', headers: { transaction: kept.id } })
      dropped.abort(); kept.commit()
      assert.equal(await got, 'yes')
    })
    await check(version + ' heart-beats keep it alive, and an error is told', async () => {
      await new Promise(resolve => setTimeout(resolve, 5000))
      assert.ok(one.connected)
      const error = new Promise(resolve => { one.onStompError = resolve })
      one.publish({ destination: '/nowhere', body: '', headers: { receipt: 'r1' } })
      assert.equal((await error).headers['receipt-id'], 'r1')
    })
    await one.deactivate(); await two.deactivate()
  }
  console.log(`${passed} passed, ${failed} failed`)
  process.exit(failed ? 1 : 0)
}
main()
"""


def main() -> int:
    """Run the session; the exit status."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = Cluster(folder, 2, "--cluster-node-timeout", "2000")
        ports = [free_port() for _ in made.nodes]
        for node, port in zip(made.nodes, ports, strict=True):
            node.flags = (*node.flags, "--stomp-port", str(port))
        stack.enter_context(made).join()
        target = npm_install(folder, "@stomp/stompjs")
        (target / "session.cjs").write_text(SESSION)
        return run("node", "session.cjs", *map(str, ports), folder=target)


if __name__ == "__main__":
    sys.exit(main())
