export function Chat() {
  return <h2 class="page-title">Chat</h2>;
}
