export function Service() {
  return <h2 class="page-title">Service</h2>;
}
