export function Traffic() {
  return <h2 class="page-title">Traffic</h2>;
}
